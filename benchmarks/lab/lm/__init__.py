"""A real pretrained language model on two cores: SmolLM2-135M-Instruct, and three task families that it can half solve."""
