"""What a node does."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from own_app.task import Net, load_data
from own_app.task import test as test_fn
from own_app.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the global model on this node's data."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    model.to(device)
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    batch_size = context.run_config["batch-size"]
    trainloader, _ = load_data(partition_id, num_partitions, batch_size)
    epochs, rate = context.run_config["local-epochs"], msg.content["config"]["lr"]
    loss = train_fn(model, trainloader, epochs, rate, device)
    metrics = {"train_loss": loss, "num-examples": len(trainloader.dataset)}
    arrays, measured = ArrayRecord(model.state_dict()), MetricRecord(metrics)
    return Message(RecordDict({"arrays": arrays, "metrics": measured}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the global model on this node's held-out data."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    model.to(device)
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    batch_size = context.run_config["batch-size"]
    _, valloader = load_data(partition_id, num_partitions, batch_size)
    loss, accuracy = test_fn(model, valloader, device)
    metrics = {"eval_loss": loss, "eval_acc": accuracy}
    metrics["num-examples"] = len(valloader.dataset)
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content, reply_to=msg)
