"""What runs inside a sandbox: standard library only, because nothing else of this package is visible there."""
