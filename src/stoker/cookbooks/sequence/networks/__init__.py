"""The networks: each takes windows (batch, rows, channels) and gives one row of outputs for each.

None of them draws random numbers or looks at its neighbours in a batch while it trains (no dropout, no batch
normalisation): a batch that is divided over ranks gives the gradient of the whole.
"""
