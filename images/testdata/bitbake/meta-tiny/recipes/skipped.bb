SUMMARY = "not for this machine"
python () {
    raise bb.parse.SkipRecipe("not for this machine")
}
