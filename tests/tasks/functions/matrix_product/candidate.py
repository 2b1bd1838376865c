"""The matrix product, all rows at once."""


def matrix_product(x, weight):
    return x @ weight
