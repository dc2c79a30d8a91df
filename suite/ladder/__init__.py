"""The ladder: a naive script made smaller and faster one rung at a time, each predicted and measured."""
