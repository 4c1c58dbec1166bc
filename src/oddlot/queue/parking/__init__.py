"""Parking: forecasts of needed machines, the choice of settings, and the drivers of the controller."""
