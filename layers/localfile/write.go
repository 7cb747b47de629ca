package localfile

import (
	"encoding/json"
	"os"

	"github.com/google/renameio/v2"
)

// WriteJSON writes v as indented JSON. The file appears as a whole.
func WriteJSON(name string, v any, mode os.FileMode) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(name, append(data, '\n'), mode)
}
