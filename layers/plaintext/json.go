package plaintext

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
)

// JSONError returns an error of encoding/json without the name of a Go type.
func JSONError(err error) error {
	if e := (&json.UnmarshalTypeError{}); errors.As(err, &e) {
		return fmt.Errorf("%s: unexpected %s", cmp.Or(e.Field, "the whole"), e.Value)
	}
	return err
}
