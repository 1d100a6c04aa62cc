"""What a model file says about itself: headers, facts, and which file of a folder to take."""
