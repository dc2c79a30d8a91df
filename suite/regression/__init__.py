"""Did anything get slower, bigger or wrong since a baseline?"""
