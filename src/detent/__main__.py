"""`python -m detent`, if the script is not on the path."""

from detent.cli import main

if __name__ == "__main__":
    main()
