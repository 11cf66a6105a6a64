"""``python -m engine.detokenizer_process``: the text process. Blocks in poll, works, sends, beats."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from engine.child import BEAT_INTERVAL, DetokenizerSpec, StatusPipe, read_spec, setup_logging, starting
from engine.detokenizer_manager import DetokenizerManager, merge
from engine.ipc import Inbox, Outbox
from engine.messages import BatchTokenIDOut, SchedulerOutput
from engine.text.load import load_tokenizer


def handle(manager: DetokenizerManager, messages: list[SchedulerOutput], send: Callable[[object], None]) -> None:
    """Pass on what came, in order; neighbouring batches become one."""
    batches: list[BatchTokenIDOut] = []

    def flush() -> None:
        if batches:
            out = manager.process(merge(batches))
            batches.clear()
            if out.rows:
                send(out)

    for message in messages:
        if isinstance(message, BatchTokenIDOut):
            batches.append(message)
        else:
            flush()
            send(message)
    flush()


def main() -> None:
    spec = read_spec(DetokenizerSpec)
    setup_logging("detokenizer", spec.log_level)
    status = StatusPipe(spec.status_fd)
    context = zmq.Context(io_threads=1)
    with starting(status):
        inbox: Inbox[SchedulerOutput] = Inbox(context, spec.inbox, SchedulerOutput)
        outbox, aborts = Outbox(context, spec.outbox), Outbox(context, spec.aborts)
        manager = DetokenizerManager(load_tokenizer(spec.tokenizer_path), aborts.send)
    status.started()
    while True:
        handle(manager, inbox.receive(timeout=BEAT_INTERVAL), outbox.send)
        status.beat(dropped=inbox.dropped)


if __name__ == "__main__":
    main()
