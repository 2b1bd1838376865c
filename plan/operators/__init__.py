"""Common operators, predicted on any GPU without training.

`predicting` answers a question, `question` says what can be asked, `shipped_model` what is known of
GPUs without measurements, and `correction` joins it with measured rows.
"""
