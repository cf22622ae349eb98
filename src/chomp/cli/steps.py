"""`chomp launch local` and `chomp pin`."""

from chomp.cli.commands import LaunchLocal, Pin
from chomp.cli.output import say
from chomp.executor.identity import add_pin, read_pins, remove_pin
from chomp.launch.multi_process import launch_locally
from chomp.launch.run import outputs_folder


def local(asked: LaunchLocal) -> int:
    """Run the processes to their end; the exit code."""
    return launch_locally(
        asked.command or [],
        processes=asked.processes,
        devices_per_process=asked.devices_per_process,
        restarts=asked.restarts,
    )


def pin(asked: Pin) -> int:
    """Add, list or remove pins."""
    folder = outputs_folder(asked.prefix)
    if asked.is_list:
        pins = read_pins(folder)
        for name, kept in sorted(pins.items()):
            say(f"{name} counts as {kept}")
        if not pins:
            say(f"Nothing is pinned in {folder}.")
    elif asked.remove is not None:
        say(f"{remove_pin(folder, asked.remove)} counts as itself again.")
    else:
        kept, name = add_pin(folder, str(asked.kept), str(asked.other))
        say(f"{name} counts as {kept} from now on. Undo: chomp pin --remove {name}")
    return 0
