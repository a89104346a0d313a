"""How processes that were just started tell each other from those that a launcher started before them."""

import time
import uuid
from typing import Any


def session(store: Any, rank: int, size: int, *, seconds: float) -> str:
    """Return a name that these processes share with each other, and with nobody before them.

    torchrun keeps its store when it starts processes again. What the first ones wrote is still in it: their
    addresses, to which nobody listens any more. So each says hello with a name of its own, the first rank
    answers it by that name, until it has heard from all who took its answer.

    Args:
        store: Where they find what the others say.
        rank: This one.
        size: How many there are.
        seconds: How long the first rank waits for the others.

    Raises:
        RuntimeError: Some did not come.
    """
    name, end = uuid.uuid4().hex, time.monotonic() + seconds
    if rank > 0:
        store.set(f"hello/{rank}", name)
        found: str = store.get(f"welcome/{name}").decode()
        store.set(f"joined/{found}/{rank}", "")
        return found
    while missing := [other for other in range(1, size) if not store.check([f"joined/{name}/{other}"])]:
        if time.monotonic() > end:
            raise RuntimeError(f"rank {missing[0]} did not come")
        for other in missing:
            if store.check([f"hello/{other}"]):
                store.set(f"welcome/{store.get(f'hello/{other}').decode()}", name)
        time.sleep(0.02)
    return name
