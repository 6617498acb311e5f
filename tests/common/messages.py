"""Send a message to a ClientApp and read the reply, without a grid, a strategy or torch."""

from flwr.app import ConfigRecord, Context, Message, RecordDict

from coprefl_flwr.arrays import to_record
from coprefl_flwr.federation.flower import enter_run, name_message


def ask(app, message_type, arrays=None, node_config=None, **config):
    """Return the content of the app's reply; underscores in keys of `config` become hyphens."""
    enter_run(run_id=1, node_id=1)
    named = {name.replace("_", "-"): value for name, value in config.items()}
    content = RecordDict({"config": ConfigRecord(named)})
    if arrays is not None:
        content["arrays"] = to_record(arrays)
    message = Message(content, 2, message_type)
    name_message(message, "1")
    node_config = {"partition-id": 5} if node_config is None else node_config
    context = Context(1, 2, node_config, RecordDict(), run_config={})
    return app(message, context).content
