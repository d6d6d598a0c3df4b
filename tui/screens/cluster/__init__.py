"""The working screen: peers, split, what goes on, chat."""
