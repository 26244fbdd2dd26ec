"""What the router weighs: terms of a text, cards of tools, lexical and semantic likeness. Pure."""
