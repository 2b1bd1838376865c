"""Judging an implementation that somebody, or a model, wrote: is it right, and is it faster?"""
