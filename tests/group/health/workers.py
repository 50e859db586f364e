"""Workers that are watched, in one process."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

from replicax.cluster.patience import Patience
from replicax.cluster.strangers import Strangers
from replicax.group.health.alarm import PATIENCE
from replicax.group.health.client import Client
from replicax.group.health.diagnosis import Limits
from replicax.group.health.monitor import Monitor
from replicax.group.health.peers import WATCHING, History, Peer
from replicax.group.health.server import HealthServer

TOKEN = "secret"
#: A script in which an alarm is raised comes and ends within this time, and process 0 leaves soon after the others.
ALARMED = PATIENCE._replace(start=0.1, end=0.1)
LEAVING = WATCHING._replace(end=0.1)


class Worker:
    """A worker's server and monitor, whose thread does not run."""

    def __init__(self, index: int, strangers: Strangers[socket.socket] | None = None):
        self.codes: list[int] = []
        self.server = HealthServer("127.0.0.1", strangers)
        self.index = index

    def meet(self, others: list[Worker], watching: Patience = LEAVING) -> None:
        peers = [
            Peer(o.index, Client("127.0.0.1", o.server.port, TOKEN), History(f"worker:{o.index}", "", 0.0))
            for o in others
        ]
        name = f"worker:{self.index}"
        self.monitor = Monitor(
            self.index, name, "here:1", peers, Limits(5.0), end=self.codes.append, patience=ALARMED, watching=watching
        )
        self.server.answer(TOKEN, self.monitor)

    @property
    def client(self) -> Client:
        return Client("127.0.0.1", self.server.port, TOKEN)

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.monitor.observer._asking.close()
        for peer in self.monitor.peers:
            peer.client.close()


@contextlib.contextmanager
def two_workers(
    watching: Patience = LEAVING, strangers: Callable[[], Strangers[socket.socket] | None] = lambda: None
) -> Iterator[list[Worker]]:
    made = [Worker(index, strangers()) for index in range(2)]
    for worker in made:
        worker.meet([other for other in made if other is not worker], watching)
    try:
        yield made
    finally:
        for worker in made:
            worker.stop()
