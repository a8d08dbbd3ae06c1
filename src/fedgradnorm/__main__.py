"""``python -m fedgradnorm``."""

from fedgradnorm.cli import main

if __name__ == "__main__":
    main()
