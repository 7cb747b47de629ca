package kastest

import (
	"errors"
	"testing"
)

func TestKasIsFound(t *testing.T) {
	for name, suite := range map[string]Suite{"installed": Installed, "testing": Testing} {
		t.Run(name, func(t *testing.T) {
			k, err := Find(t.Context(), suite)
			if errors.Is(err, ErrMissing) {
				t.Skip(err)
			}
			if err != nil || k.Version < "3" {
				t.Errorf("found %q, %v; want kas 3 or later", k.Version, err)
			}
		})
	}
}
