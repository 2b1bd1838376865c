"""What runs in the environments that a gate compares: finds benchmarks, and times them on request.

The environments need not have Foretune. So these modules import the standard library only, and
`start` loads them without the packages above them.
"""
