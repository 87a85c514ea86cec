"""Reports for people and programs.

Exporters are imported where they are used, so that importing egpu stays quick.
"""
