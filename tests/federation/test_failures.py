"""Why a client failed: from an exception, and from what Flower's error replies say."""

import json
import textwrap

import pytest
from flwr.app import Error, Message, RecordDict

from coprefl_flwr.federation.failures import describe_exception, place, program_error, reason
from coprefl_flwr.federation.flower import enter_run, name_message

OF_RAY = """<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'\x1b[36mray::ClientAppActor\
.run()\x1b[39m (pid=1, ip=192.0.2.2, actor_id=f, repr=<flwr.simulation.ClientAppActor object>)
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/v/lib/python3.11/site-packages/flwr/clientapp/client_app.py", line 159, in __call__
    return train_fn(message, context)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/tmp/home/apps/you.own-app.1.0.0.b61ad132/own_app/client_app.py", line 22, in train
    loss = train_model(model, batches, epochs, rate)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/tmp/home/apps/you.own-app.1.0.0.b61ad132/own_app/task.py", line 61, in train
    loss = model.logits(batch)
           ^^^^^^^^^^^^
  File "/v/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1999, in __getattr__
    raise AttributeError(
{raised}

The above exception was the direct cause of the following exception:

\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=1, ip=192.0.2.2, actor_id=f)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/v/lib/python3.11/site-packages/flwr/simulation/ray_transport/ray_actor.py", line 65, in run
    raise ClientAppException(str(ex)) from ex
flwr.clientapp.client_app.ClientAppException: 
Exception ClientAppException occurred. Message: {raised}'>"""  # noqa: W291


def reply(text, code=2):
    enter_run(run_id=1, node_id=1)
    message = Message(RecordDict(), 2, "train")
    name_message(message, "1")
    return Message(Error(code, text), reply_to=message)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            OF_RAY.replace("{raised}", "AttributeError: 'Net' has no 'logits'"),
            "AttributeError: 'Net' has no 'logits' (own_app/task.py:61)",
        ),
        (
            OF_RAY.replace("{raised}", "torch.OutOfMemoryError: CUDA:\n  tried\nmuch"),
            "OutOfMemoryError: CUDA: tried much (own_app/task.py:61)",
        ),
        # A deployment's.
        ("<class 'ValueError'>:<'boom client'>", "ValueError: boom client"),
        ("<class 'my.Own'>:<'it's gone\nfor good'>", "Own: it's gone for good"),
        # LocalGrid's.
        ("<class 'TypeError'>:<\"it's\"> (task.py:3)", "TypeError: it's (task.py:3)"),
        ("Node Unavailable", "Node Unavailable"),
        ("", "error 2"),
    ],
)
def test_an_error_reply_is_one_line_with_the_place_if_flower_has_it(text, line):
    assert reason(reply(text)) == line


def test_an_old_style_client_is_told_what_to_do():
    assert reason(reply("<class 'KeyError'>:<''fitins.parameters''>")).endswith(
        "make it client_app(client_fn), imported from coprefl_flwr.clients"
    )


def raised(function, *arguments):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function(*arguments)
    # Without this file's frames, which are a user's too.
    caught.value.__traceback__ = caught.value.__traceback__.tb_next
    return caught.value


def test_the_place_is_the_innermost_line_of_a_users_file(tmp_path, monkeypatch):
    """Not the one in the standard library where the exception is made."""
    text = """
        import json

        def read(text):
            return json.loads(text)
        """
    path = tmp_path / "mine" / "reading.py"
    path.parent.mkdir()
    path.write_text(textwrap.dedent(text))
    names = {}
    exec(compile(path.read_text(), path, "exec"), names)
    error = raised(names["read"], "{")
    assert place(error) == " (mine/reading.py:5)"
    assert describe_exception(error).endswith("(char 1) (mine/reading.py:5)")
    monkeypatch.chdir(path.parent)
    assert place(error) == " (reading.py:5)"


@pytest.mark.parametrize("library", [(json.loads, "{"), (program_error, 3)])
def test_what_went_through_no_file_of_a_user_has_no_place(library):
    assert place(raised(*library)) == ""


@pytest.mark.parametrize(
    ("reasons", "found"),
    [
        (["TypeError: a (t.py:1)", "TypeError: b (t.py:1)"], "TypeError: a (t.py:1)"),
        (["ValueError: No train function registered with name 'query'"] * 2, None),
        (["TypeError: a", "KeyError: a"], ""),
        (["TypeError: a", "error 5"], ""),
        (["OSError: a", "OSError: a"], ""),
        (["RuntimeError: CUDA error"], ""),
        (["the TypeError: is one"], ""),
        ([], ""),
    ],
)
def test_a_program_error_is_one_kind_that_all_have(reasons, found):
    assert program_error(reasons) == (reasons[0] if found is None else found)
