"""Try a trained run in a browser: python -m ptb_lm.play RUN."""

import argparse
import sys

from ptb_lm.common import cli, signals
from ptb_lm.common.errors import UserError
from ptb_lm.inference import loading

PROG = cli.command_name("play")
PORT = 8000
LAST_PORT = 65535


def _add_flags(parser: cli.Parser) -> None:
    loading.add_run(parser)
    parser.add_argument(
        "--port",
        type=cli.whole_number(0),
        default=PORT,
        metavar="N",
        help=f"0: any free port (default: {PORT})",
    )


@cli.command(
    PROG,
    "Serve a web page to this machine only. It colours each word of a text by its surprisal, "
    "and continues a prompt. Ctrl-C ends it.",
    _add_flags,
)
def main(arguments: argparse.Namespace) -> None:
    """Serve the page until a signal comes."""
    if arguments.port > LAST_PORT:
        raise UserError(f"--port must be at most {LAST_PORT}, not {arguments.port}")
    # Imported here, because what it imports takes longer than --help should take.
    from ptb_lm.inference.play import HOST, Server

    with Server(arguments.port) as server:
        server.use(loading.load_from_flags(arguments))
        print(f"http://{HOST}:{server.port}/ shows the page; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except signals.StopSignal as stop:
            if stop.exit_status != cli.EXIT_INTERRUPTED:
                raise


if __name__ == "__main__":
    sys.exit(main())
