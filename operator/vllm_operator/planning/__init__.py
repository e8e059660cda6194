"""From what is asked for and what there is to a plan, every choice with its reason. Pure."""
