"""Databases as earlier versions left them, with events in every state: one folder for each version.

make     writes the folder of the version that it is run with
load     puts a folder's schema and data into an empty database
"""
