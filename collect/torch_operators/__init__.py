"""Operators of language models, run by torch on this machine's GPU or CPU.

They correspond to rows of measured tables, for one rank. Activations are in the format of the
product (engines convert them in the previous operation), and results have 16 bits. Torch fuses less
than engines do, so these are not an engine's times.
"""
