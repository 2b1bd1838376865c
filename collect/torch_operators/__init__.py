"""Operators of language models, run by torch on this machine's GPU or CPU.

They reproduce the rows of measured tables. One rank is computed. Activations are in the format of
the product (engines convert them in the operation before), and results have 16 bits. Torch fuses
less than engines do, so times are of torch, not of an engine.
"""
