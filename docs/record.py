"""Records what docs/screens.md shows: `python docs/record.py [tour run doctor ledger tensorboard]`, in three minutes.

Commands run in a pseudo-terminal (`asciinema rec`); a pause is at most a second in the recording. Chromium shows
the end of each recording in the site's player, and TensorBoard, and makes the pictures. It needs the extra `nightly`.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PICTURES, CASTS = DOCS / "images" / "screens", DOCS / "casts"
COLUMNS, ROWS = 80, {"doctor": 37, "run": 18, "ledger": 31, "tour": 24}
PAUSE_S = 1.0
DEADLINE_S = 240.0
COMMANDS = {
    "tour": ["replicax doctor --choose", "replicax demo --limit 512 --epochs 2"],
    "run": ["replicax run --workers 2 examples/multi_worker_fit.py"],
    "doctor": ["replicax doctor --quick"],
    "ledger": ["replicax run --workers 2 --log-dir runs/x train.py", "replicax ledger runs/x"],
}
#: What the ledger is of: a training whose second worker reads slowly.
SLOW_INPUT = """
import time
import numpy as np, replicax as rx

strategy = rx.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = rx.Variable(np.zeros((256, 256), "float32"))

def rows():
    for _ in range(300):
        if strategy.worker_index == 1:
            time.sleep(0.02)  # a slow disk
        yield np.ones((64, 256), "float32")

def step(x):
    def loss_fn():
        return ((x @ weights.value - x) ** 2).mean()

    loss, (gradient,) = rx.value_and_grad(loss_fn, [weights], aggregation="mean")()
    weights.assign_sub(0.1 * gradient)
    return loss

@rx.function
def train(x):
    return strategy.reduce("mean", strategy.run(step, args=(x,)), axis=None)

for x in strategy.distribute_datasets_from_function(lambda context: rows()):
    loss = train(x)
print(f"loss {float(loss):.3f}")
"""
#: A page with a player that stands at the end of a recording.
PLAYER = """<link rel="stylesheet" href="player/asciinema-player.css"><div id="p" style="width: 760px"></div>
<style>.ap-overlay-start, .ap-cursor {{display: none !important}}</style>
<script src="player/asciinema-player.min.js"></script><script>
AsciinemaPlayer.create("casts/{name}.cast", document.getElementById("p"),
  {{poster: "npt:{end}", controls: false, theme: "asciinema", fit: "width"}})</script>"""
#: What TensorBoard shows: a short training on eight virtual devices.
TRAINING = """
import sys, numpy as np, replicax as rx, keras
rx.config.set_virtual_devices(8)
rng = np.random.default_rng(0)
x = rng.normal(size=(512, 20)).astype("float32")
strategy = rx.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(3)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(x, x[:, :3].argmax(1), batch_size=64, epochs=20, verbose=0, validation_split=0.25,
          callbacks=[rx.keras.TensorBoard(sys.argv[1])])
"""


def play(name: str) -> None:
    """Types commands and runs them: what `asciinema rec` records."""
    Path("train.py").write_text(SLOW_INPUT.lstrip())
    Path("examples").symlink_to(ROOT / "examples")
    for command in COMMANDS[name]:
        print("\033[1;32m$\033[0m ", end="", flush=True)
        for letter in command:
            print(letter, end="", flush=True)
            time.sleep(0.02)
        print(flush=True)
        words = shlex.split(command)
        subprocess.run([sys.executable, "-m", *words], check=True)


def record(name: str) -> None:
    """Records the commands of that name."""
    CASTS.mkdir(exist_ok=True)
    words = [
        sys.executable,
        "-m",
        "asciinema",
        "rec",
        "--overwrite",
        "--quiet",
        "--env",
        "TERM",
    ]
    words += [
        "--cols",
        str(COLUMNS),
        "--rows",
        str(ROWS[name]),
        "--idle-time-limit",
        str(PAUSE_S),
    ]
    words += [
        "--command",
        shlex.join([sys.executable, str(DOCS / "record.py"), "--play", name]),
    ]
    environment = os.environ | {
        "TERM": "xterm-256color",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [*words, str(CASTS / f"{name}.cast")],
            env=environment,
            cwd=folder,
            check=True,
            timeout=DEADLINE_S,
        )
        if name == "ledger":
            plot_ledger(Path(folder, "runs", "x"))


def plot_ledger(logs: Path) -> None:
    """Draws what `replicax ledger --png` draws, for light and for dark ground."""
    from replicax.tools.ledger import read
    from replicax.tools.ledger.showing import picture

    for ground in ("light", "dark"):
        picture(read(logs), PICTURES / f"ledger-{ground}.svg", dark=ground == "dark")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serves a folder on this machine; yields its address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Prints nothing."""


def picture_of_recording(name: str) -> None:
    """Makes a picture of how a recording ends."""
    end = (
        (CASTS / f"{name}.cast").read_text().splitlines()[-1].split(",")[0].lstrip("[")
    )
    page_file = DOCS / f"{name}-player.html"
    page_file.write_text(PLAYER.format(name=name, end=end))
    try:
        with serving(DOCS) as address, _browser() as browser:
            page = browser.new_page(
                viewport={"width": 800, "height": 600}, device_scale_factor=1.5
            )
            page.goto(address + page_file.name)
            page.wait_for_selector(".ap-term", timeout=30_000)
            page.wait_for_timeout(1500)
            page.locator(".ap-player").screenshot(path=PICTURES / f"{name}.png")
    finally:
        page_file.unlink()
    _made_small(PICTURES / f"{name}.png")


def picture_of_tensorboard() -> None:
    """Trains, and makes a picture of the page that TensorBoard shows of it, in light and in dark."""
    with tempfile.TemporaryDirectory() as logs:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run(
            [sys.executable, "-c", TRAINING, logs],
            env=environment,
            check=True,
            timeout=DEADLINE_S,
        )
        board = [
            sys.executable,
            "-m",
            "tensorboard.main",
            "--logdir",
            logs,
            "--host",
            "127.0.0.1",
            "--port",
        ]
        with serving(Path(logs)) as free:  # A port that is free.
            port = free.rpartition(":")[2].strip("/")
        server = subprocess.Popen([*board, port], stderr=subprocess.DEVNULL)
        try:
            address = f"http://127.0.0.1:{port}/"
            _wait_for(address)
            with _browser() as browser:
                for scheme in ("light", "dark"):
                    page = browser.new_page(
                        viewport={"width": 1100, "height": 620}, color_scheme=scheme
                    )
                    page.goto(
                        f"{address}?darkMode={str(scheme == 'dark').lower()}#timeseries"
                    )
                    page.wait_for_timeout(12_000)
                    page.screenshot(path=PICTURES / f"tensorboard-{scheme}.png")
                    _made_small(PICTURES / f"tensorboard-{scheme}.png")
        finally:
            server.terminate()
            server.wait(30)


def _made_small(picture: Path) -> None:
    """Gives a picture 64 colours: it has few, and takes a third of the bytes."""
    from PIL import Image

    Image.open(picture).convert("RGB").quantize(64).save(picture, optimize=True)


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


def _browser() -> contextlib.AbstractContextManager:
    sys.path.insert(0, str(ROOT))
    from tests.browser.chromium import browser, installed_executable

    return browser(installed_executable())


def main() -> None:
    """Records and makes pictures of all that is named, or of all."""
    if sys.argv[1:2] == ["--play"]:
        play(sys.argv[2])
        return
    PICTURES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or [*COMMANDS, "tensorboard"]:
        if name == "tensorboard":
            picture_of_tensorboard()
        else:
            record(name)
            if name != "tour":
                picture_of_recording(name)


if __name__ == "__main__":
    main()
