"""Tasks for the judge: a reference, a candidate and their inputs, in the forms that people have.

`foretune.tune.tasks.folder.read_task` reads a folder. Nothing of a task is imported in the process
that reads it: its Python files are parsed, and their code runs in the judge's workers only.
"""
