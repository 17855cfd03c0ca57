"""Programs that a person starts, one module each; what they share is in the packages."""
