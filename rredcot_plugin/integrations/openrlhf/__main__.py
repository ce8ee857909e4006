"""``python -m rredcot_plugin.integrations.openrlhf <flags of openrlhf.cli.train_ppo_ray>``."""

import sys

from rredcot_plugin.integrations.openrlhf.train import main

if __name__ == "__main__":
    main(sys.argv[1:])
