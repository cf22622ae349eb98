"""Chomp: the library under the grug templates. Import from its rooms: `chomp.data`, `chomp.mesh`.

The package itself imports nothing, so that any one room costs only what that room needs.
"""

__version__ = "0.1.0"
