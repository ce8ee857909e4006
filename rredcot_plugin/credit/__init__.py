"""From values to advantages: redistribution, shapers, GAE over segments, scaling, metrics."""
