"""Workers that are watched, in one process."""

from __future__ import annotations

from replicax.group.health.client import Client
from replicax.group.health.diagnosis import Limits
from replicax.group.health.monitor import Monitor
from replicax.group.health.peers import History, Peer
from replicax.group.health.server import HealthServer

TOKEN = "secret"


class Worker:
    """A worker's server and monitor, whose thread does not run."""

    def __init__(self, index: int):
        self.codes: list[int] = []
        self.server = HealthServer("127.0.0.1")
        self.index = index

    def meet(self, others: list[Worker]) -> None:
        peers = [
            Peer(o.index, Client("127.0.0.1", o.server.port, TOKEN), History(f"worker:{o.index}", "", 0.0))
            for o in others
        ]
        self.monitor = Monitor(self.index, f"worker:{self.index}", "here:1", peers, Limits(5.0), end=self.codes.append)
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
