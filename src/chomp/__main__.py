"""`python -m chomp`: the same as the command `chomp`."""

from chomp.cli.main import main

if __name__ == "__main__":
    main()
