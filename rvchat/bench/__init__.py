"""Measuring a loaded model: how fast it reads and answers, against what bound, and how well it predicts a text.

May import engine, text and below; prints nothing and opens no model.
"""
