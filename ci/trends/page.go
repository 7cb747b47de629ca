package trends

// Page returns the page.
func (t Trends) Page() ([]byte, error) { return nil, nil }
