"""What a node does."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from own_app.task import Net, load_data, train

app = ClientApp()


@app.train()
def train_on_node(message: Message, context: Context) -> Message:
    """Train the global model on this node's data."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    batches, _ = load_data(int(context.node_config["partition-id"]))
    loss = train(model, batches, float(context.run_config["learning-rate"]))
    metrics = MetricRecord({"num-examples": len(batches.dataset), "loss": loss})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
