"""What a node does."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from own_app.task import Net, load_data
from own_app.task import test as test_model
from own_app.task import train as train_model

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the global model on this node's data."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    batches, _ = load_data(context.node_config["partition-id"])
    epochs, rate = context.run_config["local-epochs"], message.content["config"]["lr"]
    loss = train_model(model, batches, epochs, rate)
    metrics = {"train_loss": loss, "num-examples": len(batches.dataset)}
    arrays, measured = ArrayRecord(model.state_dict()), MetricRecord(metrics)
    return Message(RecordDict({"arrays": arrays, "metrics": measured}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the global model on this node's held-out data."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, batches = load_data(context.node_config["partition-id"])
    loss, accuracy = test_model(model, batches)
    metrics = {"eval_loss": loss, "eval_acc": accuracy}
    metrics["num-examples"] = len(batches.dataset)
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)
