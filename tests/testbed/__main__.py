"""The testbed by hand: `python -m tests.testbed build`, or `up` for a control plane to look at with kubectl.

`make testbed` calls the first. Tests don't come here; they take the `control_plane` fixture.
"""

import argparse
import signal
import sys

from tests.testbed.build import BuildFailed, Unavailable, binaries, controllers, say_on_stderr
from tests.testbed.control_plane import ControlPlane
from tests.testbed.waiting import TestbedError
from tests.testbed.workload_controllers import WorkloadControllers

ENDS = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.testbed", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build what is missing; nothing where all is cached")
    up = commands.add_parser("up", help="build, start, and stay until Ctrl-C")
    up.add_argument("--nodes", type=int, default=3, help="GPU nodes to begin with")
    up.add_argument("--training", action="store_true", help="with JobSet and the Kubeflow training operator")
    arguments = parser.parse_args()
    try:
        programs = binaries()
        say_on_stderr(f"programs in {programs.kwok.parent}")
        if arguments.command == "build":
            say_on_stderr(f"controllers of training jobs in {controllers().jobset.parent}")
        else:
            with ControlPlane(programs) as plane:
                if arguments.training:
                    WorkloadControllers(plane, controllers()).start()
                plane.add_nodes(arguments.nodes)
                say_on_stderr(f"ready in {plane.started_in_s:.1f} s: kubectl --kubeconfig {plane.kubeconfig} get nodes")
                signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
                signal.sigwait(ENDS)
    except (Unavailable, BuildFailed, TestbedError) as failure:
        say_on_stderr(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
