"""The `chomp` command. Nothing here imports JAX before a command needs it."""
