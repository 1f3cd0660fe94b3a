"""The commands of keras-transformer: each is a module, which defines its flags when imported."""
