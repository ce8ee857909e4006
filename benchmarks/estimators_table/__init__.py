"""verl's advantage estimators and ours: exact expectations on enumerable policies, and on the gradient benchmark's families."""
