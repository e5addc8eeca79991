//go:build !linux

package chaos

import "errors"

var errNoDisk = errors.New("small disks need Linux")

func mountDisk(string, string) error { return errNoDisk }
func unmountDisk(string) error       { return nil }
func isDisk(string) bool             { return false }
func fillDisk(string, uint64) error  { return errNoDisk }
func emptyDisk(string) error         { return errNoDisk }
