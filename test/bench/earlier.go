package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// readEarlier reads what an earlier run wrote. No file is an empty result.
func readEarlier(file string) (result, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return result{}, nil
	}
	if err != nil {
		return result{}, fmt.Errorf("read the earlier result: %w", err)
	}
	var r result
	if err := json.Unmarshal(data, &r); err != nil {
		return result{}, fmt.Errorf("read the earlier result %s: %w", file, err)
	}
	return r, nil
}

// measured are the rows of a group, if none of the rows failed. A group whose rows
// failed is measured again.
func (r result) measured(group string) []row {
	var rows []row
	for _, row := range r.Rows {
		if row.Group != group {
			continue
		}
		if row.Failure != "" {
			return nil
		}
		rows = append(rows, row)
	}
	return rows
}

// differs names the fact that makes an earlier result one of another machine or of other
// programs, or is empty. The fact "Run" may differ: it has the day and the load.
func (r result) differs(now []fact) string {
	for _, f := range now {
		if f.Name != runFact && !slices.Contains(r.Facts, f) {
			return f.Name
		}
	}
	return ""
}
