package overlay



func newTarSource(string, placement) (source, error) { return nil, refuse("bad_recipe", "", "tar") }
func newDebian(*Store, Debian) (source, error)       { return nil, refuse("bad_recipe", "", "debian") }

