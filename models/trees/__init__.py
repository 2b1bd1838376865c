"""Boosted trees and their fast prediction."""
