"""Prudent: decision policies that come with a number you can trust."""
