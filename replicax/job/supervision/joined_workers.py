"""Workers that join a running job: the listener of its launcher, and their processes as it knows them.

The launcher of a joined worker (`replicax run --join`) starts the process and watches it. It keeps one connection with
the listener, on which both send JSON, one object a line:

| from | message | meaning |
| --- | --- | --- |
| both | | prove that they know the job's token (`replicax.cluster.token_proof`) |
| joined worker | `host`, `wanted` | asks for a place, if possible with the index that it had before |
| listener | `environment`, `index` | it has this place; these are the variables of its cluster |
| listener | `no` | it cannot join, and why |
| joined worker | `pid` | its process runs |
| joined worker | `world`, `lives`; `leaving`; `leaves`; `silent`, `life` | what its process tells its launcher |
| listener | `signal` | a signal for its process |
| joined worker | `ended`, `words` | the exit code of its process, and its last words |

If the connection ends, so does the process: the listener counts it as lost, and its own launcher kills it.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from replicax.cluster.addresses import Address, join_address
from replicax.cluster.lines import is_number
from replicax.cluster.outages import end_if_silent
from replicax.cluster.patience import Patience
from replicax.cluster.token_proof import Session, Strangers, demanded
from replicax.errors.exit_codes import from_signal
from replicax.job.processes.events import (
    ClusterLeft,
    EventSink,
    FoundSilent,
    Joined,
    ProcessEnded,
    ProcessLike,
    ScriptEnded,
    Started,
    member_news,
)
from replicax.job.processes.task import WORKER, PlannedTask

_MOST_WORKERS = 2**20
#: How long a launcher and a worker that joins wait for each other.
PATIENCE = Patience(
    start=10.0,  # to connect, and for an answer
    silence=10.0,  # on a connection; then it is given up: its cable is cut
    end=5.0,  # for threads, and for strangers that keep a worker out
    again=0.1,
    stall=15.0,  # for a job that may be starting again as a whole
)


class JoinedWorker:
    """A worker that has been started elsewhere to join the job; see `JoinedWorkerLike`."""

    def __init__(self, session: Session, host: str, wanted: int | None, events: EventSink):
        self.task = PlannedTask(WORKER, -1, None, {})
        self.host, self.wanted = host, wanted
        self.last_words, self.pid, self.meets, self.has_left = "", 0, 0, False
        self.told: ScriptEnded[ProcessLike] | None = None
        self.log_path: Path | None = None
        self._session, self._events = session, events
        self._returncode = from_signal(signal.SIGHUP)  # if the connection is lost

    def admit(self, index: int, environment: Mapping[str, str]) -> None:
        """Gives it a place."""
        self.task = PlannedTask(WORKER, index, None, dict(environment))
        self._tell({"index": index, "environment": dict(environment)})

    def refuse(self, why: str) -> None:
        """Sends it away."""
        self._tell({"no": why})
        self._hang_up()

    def send(self, number: int) -> None:
        """Sends it a signal."""
        self._tell({"signal": number})

    def kill(self) -> None:
        """Kills it: at once if its machine can be reached, otherwise as soon as its launcher notices."""
        self._tell({"signal": int(signal.SIGKILL)})
        self._returncode = -signal.SIGKILL
        self._hang_up()

    def tidy_up(self) -> int:
        """Ends the connection; returns the exit code, or -9 if it was killed."""
        self._hang_up()
        return self._returncode

    def listen(self) -> None:
        """Reads what its launcher tells, until the connection ends."""
        with contextlib.suppress(OSError, ValueError):  # It was lost, or sends something else than we expect.
            while True:
                self._take(self._session.hear())
        self._session.connection.close()
        self._events.put(ProcessEnded(self, time.monotonic()))

    def _take(self, told: Mapping[str, object]) -> None:
        news = member_news(self, told)
        if news is not None:
            self._events.put(news)
        elif is_number(told.get("pid"), 1, 2**31):
            self.pid = int(str(told["pid"]))
            self._events.put(Started(self, self.pid, self.host or "?"))
        elif is_number(told.get("ended"), 0, 256):
            self.last_words, self._returncode = str(told.get("words", "")), int(str(told["ended"]))
        elif "silent" in told and is_number(told.get("life"), 0, 2**31):
            self._events.put(FoundSilent(str(told["silent"]), int(str(told["life"]))))
        elif "leaves" in told:
            self.has_left = True
            self._events.put(ClusterLeft(self))

    def _tell(self, message: Mapping[str, object]) -> None:
        with contextlib.suppress(OSError):  # It is lost, which `listen` reports.
            self._session.tell(message)

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._session.connection.shutdown(socket.SHUT_RDWR)


class JoinListener:
    """The listener at which workers join a job."""

    def __init__(
        self,
        address: Address,
        token: str,
        events: EventSink,
        patience: Patience = PATIENCE,
        strangers: Strangers[socket.socket] | None = None,
    ):
        self._token, self._events, self._patience = token, events, patience
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._listener = socket.create_server((address.host, address.port), family=family)
        self.address = join_address(address.host, self._listener.getsockname()[1])
        self._strangers = strangers or Strangers()
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="replicax-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Lets no worker in any more."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(self._patience.end)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # It was closed, or this process has too many open files.
                _hang_up(self._strangers.oldest())
                time.sleep(0 if self._closed else self._patience.again)
                continue
            self._strangers.add(connection)
            _hang_up(self._strangers.overdue())
            threading.Thread(target=self._meet, args=(connection,), name="replicax-guest", daemon=True).start()

    def _meet(self, connection: socket.socket) -> None:
        try:
            joined_worker = self._known(connection)
        except (OSError, ValueError):  # It said nothing in time, or does not belong to this job.
            connection.close()
            return
        finally:
            self._strangers.remove(connection)
        self._events.put(Joined(joined_worker, joined_worker.host, joined_worker.wanted))
        joined_worker.listen()

    def _known(self, connection: socket.socket) -> JoinedWorker:
        """Returns the worker at the other end of a connection, once it has proved that it belongs to this job."""
        session = demanded(connection, self._token, self._strangers.seconds)
        if not self._strangers.remove(connection):
            raise ValueError("It was closed, since too many came after it.")
        told = session.hear(time.monotonic() + self._strangers.seconds)
        wanted = told.get("wanted")
        connection.settimeout(None)
        end_if_silent(connection, self._patience.silence)
        return JoinedWorker(
            session, str(told.get("host", "")), wanted if is_number(wanted, 0, _MOST_WORKERS) else None, self._events
        )


def _hang_up(connections: Iterable[socket.socket]) -> None:
    """Ends connections; the threads that read them notice it."""
    for connection in connections:
        with contextlib.suppress(OSError):  # It was closed already.
            connection.shutdown(socket.SHUT_RDWR)
